"""What the pages show, as plain values: answers, formats, colors and form fields."""

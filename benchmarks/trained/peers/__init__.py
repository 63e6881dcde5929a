"""Other tools that bound the drop of a task's metric, beside ours."""

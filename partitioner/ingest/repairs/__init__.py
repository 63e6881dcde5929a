"""What is mended in models as people ship them, before anything reads them."""

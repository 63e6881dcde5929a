"""One graph pass per file; `collage.backends.rewriting.table` lists them."""

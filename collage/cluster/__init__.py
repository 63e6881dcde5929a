"""Workers on other machines, over Dask."""

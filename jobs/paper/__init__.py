"""Results of the paper measured anew: which there are, the data they need, and the table beside its figures."""

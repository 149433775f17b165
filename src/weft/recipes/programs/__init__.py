"""Recipe: which use of a variable is wrong in programs, and what belongs there."""

"""The specification and the contract, row by row, against a real running deployment."""

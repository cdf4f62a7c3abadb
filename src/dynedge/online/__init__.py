"""A trained run that lives on: it takes in events and answers questions."""

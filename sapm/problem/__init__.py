"""What the user states: domains, equations, conditions, data; and the samples made of them."""

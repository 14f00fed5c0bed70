"""What is said and logged of requests: ids, access lines, refusals, what operators did."""

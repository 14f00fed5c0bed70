"""Ask models that others published, alone and in company, and write down what differs."""

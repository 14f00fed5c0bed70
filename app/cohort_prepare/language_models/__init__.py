"""Language models: a folder of PyTorch weights becomes a version folder that answers text."""

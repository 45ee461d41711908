"""HoldOut SGD on Flower with batch norm and local epochs."""

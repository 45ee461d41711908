"""HoldOut SGD on Flower with scikit-learn: no code in the client."""

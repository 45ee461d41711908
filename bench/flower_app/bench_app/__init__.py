"""The app that `bench/flower.py` deploys."""

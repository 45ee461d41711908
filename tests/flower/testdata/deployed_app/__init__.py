"""The app that the deployment test runs."""

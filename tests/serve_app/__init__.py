"""Tests of the API's parts that need no cluster."""

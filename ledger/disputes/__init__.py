"""Disputes over work and pay, refunds, feedback."""

"""Tests of the plain classes that actors carry."""

"""The description of the API: the OpenAPI document and the documentation page."""

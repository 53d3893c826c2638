"""The API described: schemas by name, parameters, the OpenAPI document and its page."""

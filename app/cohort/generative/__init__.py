"""Language models: text in, tokens out, by continuous batching.

`GenerativeEngines` opens version folders with a `genai_config.json`, or with a plain decoder
export. All requests of a version share runs, token by token: a request joins and leaves between
two steps.
"""

"""The HTTP server: OpenAI's protocol over a `Scheduler` (extra ``server``)."""

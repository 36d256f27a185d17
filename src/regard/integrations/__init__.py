"""Adapters to other libraries. Import the one you need; each says which extra it takes.

- `regard.integrations.transformers`: area attention inside the models of Hugging Face, and recordings of their attention (`hf`).
"""

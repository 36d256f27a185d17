"""Adapters to other libraries. Import the one you need; each says which extra it takes.

- `regard.integrations.transformers`: area attention inside the models of Hugging Face (`hf`).
- `regard.integrations.hub`: models and runs on the Hugging Face Hub (`hf`).
- `regard.integrations.onnx`: a trained run of any task as ONNX files, and a runner of them (`onnx`).
- `regard.integrations.page_model`: a trained translation model as a page that runs it in a browser. No extra.
- `regard.integrations.ctranslate2`: a trained Transformer as a model folder of CTranslate2 (`ctranslate2`).
- `regard.integrations.migrate`: weights of Marian, fairseq and JoeyNMT Transformers under our names; `migrate_files` reads them from disk,
  `migrate_run` makes a run of them. No extra.
"""

"""Adapters to other libraries. Import the one you need; each names its extra.

- `regard.integrations.transformers`: area attention in Hugging Face models (`hf`).
- `regard.integrations.hub`: models and runs on the Hugging Face Hub (`hf`).
- `regard.integrations.onnx`: a trained run of any task as ONNX files, with a runner (`onnx`).
- `regard.integrations.page_model`: a translation model as a page that runs it in a browser. No extra.
- `regard.integrations.ctranslate2`: a Transformer as a CTranslate2 model folder (`ctranslate2`).
- `regard.integrations.migrate`: weights of Marian, fairseq and JoeyNMT Transformers under Regard's names; `migrate_files` reads them from
  disk, `migrate_run` writes a run. No extra.
"""

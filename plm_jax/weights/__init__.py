"""Published weights in and out: Hugging Face folders of safetensors <-> our trunks and parameters."""

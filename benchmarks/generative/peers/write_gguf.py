"""Write a decoder's weights as GGUF: `write_gguf.py WEIGHTS.npz OUT.gguf f32|f16|q4_0`.

The archive has the weights by their names in transformers, the sizes as `shape` and the tokens.
"""

import json
import sys

import gguf
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def name_of(name):
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def turned(weight, heads):
    """Llama.cpp rotates neighbours; transformers rotates halves."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


source, out, kind = sys.argv[1:]
archive = np.load(source)
shape = json.loads(str(archive["shape"]))
tokens = json.loads(str(archive["tokenizer"]))
writer = gguf.GGUFWriter(out, "llama")
writer.add_context_length(shape["context"])
writer.add_embedding_length(shape["width"])
writer.add_block_count(shape["layers"])
writer.add_feed_forward_length(shape["inner"])
writer.add_head_count(shape["heads"])
writer.add_head_count_kv(shape["kv_heads"])
writer.add_key_length(shape["head_size"])
writer.add_value_length(shape["head_size"])
writer.add_rope_dimension_count(shape["head_size"])
writer.add_rope_freq_base(shape["theta"])
writer.add_layer_norm_rms_eps(shape["epsilon"])
writer.add_vocab_size(shape["vocabulary"])
writer.add_file_type({"f32": 0, "f16": 1, "q4_0": 2}[kind])
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(tokens["tokens"])
writer.add_token_types([3 if i < tokens["special"] else 1 for i in range(len(tokens["tokens"]))])
writer.add_token_merges([" ".join(pair) for pair in tokens["merges"]])
writer.add_bos_token_id(0)
writer.add_eos_token_id(0)
writer.add_add_bos_token(False)
for name in archive.files:
    if name in {"shape", "tokenizer"}:
        continue
    weight = archive[name]
    if "q_proj" in name or "k_proj" in name:
        weight = turned(weight, shape["heads" if "q_proj" in name else "kv_heads"])
    if kind == "f16" and weight.ndim > 1:
        writer.add_tensor(name_of(name), np.ascontiguousarray(weight, np.float16))
    elif kind == "f32" or weight.ndim == 1 or "embed" in name:
        writer.add_tensor(name_of(name), np.ascontiguousarray(weight, np.float32))
    else:
        q4 = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(name_of(name), gguf.quants.quantize(weight, q4), raw_dtype=q4)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

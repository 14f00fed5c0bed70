"""A model of onnxruntime-genai with the threads that all candidates get; its default is one."""

import json

import onnxruntime_genai as og


def open_model(folder, threads):
    config = og.Config(folder)
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    return og.Model(config)

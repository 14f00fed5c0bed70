"""Compare the first hour with LitServe and BentoML: lines to write, seconds, and mistakes.

    make first-hour-table     measures, and writes the tables into docs/reports/first-hour.md

The same iris model is behind each, on the same ONNX Runtime. The servers' files are in this folder,
as short as they can be. In bento_typed.py the input has its shape and datatype, which BentoML then
checks.
"""

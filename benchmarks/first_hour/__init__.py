"""What the first hour takes beside LitServe and BentoML: lines to write, seconds, and mistakes.

    make first-hour-table     measures, and writes the tables into docs/reports/first-hour.md

The same iris model is behind each, on the same ONNX Runtime. The servers' files are beside this
one, as short as they can be; bento_typed.py says the shape and datatype of its input, which BentoML
then checks.
"""

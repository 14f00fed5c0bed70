"""What preparing models is worth: the tables of docs/guide/prepare.md."""

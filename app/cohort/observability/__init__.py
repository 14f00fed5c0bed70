"""Request logs: ids, access lines, refusals and operators' actions."""

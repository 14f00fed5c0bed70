"""Kubernetes: Kustomize, a Helm chart, and what writes the rules of both."""

"""Topologies: frozen nodes in a graph, and everything that can be read off it."""

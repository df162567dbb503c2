"""Support a user's choices: the micro-batch that fits, the compressor that pays, the useful
remedy.
"""

"""FLOW 1, a recurring job: registry -> sync -> loop -> claim -> run -> finish; lease keeps what
runs.
"""

"""Other libraries' environments as tasksets; the registry names each behind a prefix and loads it
when one is named.
"""

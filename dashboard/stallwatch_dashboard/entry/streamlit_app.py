"""The script that Streamlit runs for every reader.

It is in a separate folder: next to a folder named pages/, Streamlit would add that folder's files to its own
navigation, and show them without the dashboard's frame.
"""

from stallwatch_dashboard.app import main

main()

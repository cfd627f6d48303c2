"""The script that Streamlit runs for every session.

The script is in a separate folder. If a folder named pages/ were next to the script, Streamlit would add the
files of pages/ to its navigation and show them without the dashboard's frame.
"""

from stallwatch_dashboard.app import main

main()

"""The script that Streamlit runs for every session.

It is in a separate folder, because Streamlit adds the files of a folder named pages/ beside its script to its
navigation, and shows them without the dashboard's frame.
"""

from stallwatch_dashboard.app import main

main()

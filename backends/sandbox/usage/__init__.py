"""What a child uses: watched while it runs, and limited by the kernel where a control group can be had."""

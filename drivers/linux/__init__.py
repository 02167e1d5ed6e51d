"""What drivers over the kernel's interfaces share: device nodes, and the processes that use them; it knows no kind."""

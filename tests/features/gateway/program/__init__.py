"""The gateway's parts on their own, and the whole proxy between real sockets."""

"""The providers' wire protocols as state machines without sockets, clocks or opinions: frames in, frames out."""

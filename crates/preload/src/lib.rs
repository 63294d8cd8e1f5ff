//! The preloaded face of Abey: gives an unmodified program the epoll and socket parameters of a delivery mode.

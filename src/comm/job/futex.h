// Functions to sleep on a word of memory and to wake sleepers. The functions also work between
// processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fsdp {

// Blocks the calling thread while `word` equals `seen`, until wake is called or `at_most` has
// passed. May return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen,
                std::chrono::microseconds at_most);
// Wakes all threads that sleep on `word`.
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace fsdp

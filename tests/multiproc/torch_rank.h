// Programs with LibTorch that tests start as processes, in one executable (torch_rank.cpp).
#pragma once

namespace fsdp::testing {

// Each function takes its arguments as main does, with its name first, and returns the exit code.
int checkpoint_rank(int count, char** words);
int host_rank(int count, char** words);
int meeting_rank(int count, char** words);
int static_objects(int count, char** words);
int writing_rank(int count, char** words);

}  // namespace fsdp::testing

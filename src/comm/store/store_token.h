// The secret with which the ranks of a job on several hosts show that they belong to the job.
#pragma once

#include <string>

#include "base/environment.h"

namespace fsdp {

struct StoreToken {
  std::string key;     // the content of the file, or zeros without a token
  std::string source;  // for messages: "FSDP_JOB_TOKEN_FILE=/home/me/token", "FSDP_NO_TOKEN=1"
  bool is_secret = true;
};

// Reads the token that the environment names.
// Errors: InvalidArgument (78), with the commands that make a token, if no token is named, or if
//   its file cannot be read, belongs to another user, can be read by other users, or has less than
//   32 bytes or more than 4 KiB. Also if both a token and FSDP_NO_TOKEN=1 are set.
StoreToken read_token(const LaunchEnvironment& environment);

}  // namespace fsdp

#include "checkpoint/resume_command.h"

#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/environment.h"
#include "fsdp/program_text.h"

namespace fsdp {

std::string resume_command() {
  const Launcher launcher = read_launch_environment().launcher;
  if (launcher != Launcher::kNone && launcher != Launcher::kFsdpRun) return {};
  const pid_t started = launcher == Launcher::kFsdpRun ? ::getppid() : ::getpid();
  std::ifstream file("/proc/" + std::to_string(started) + "/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) return {};
  return shell_command(words) + " --resume auto";
}

}  // namespace fsdp

#include "checkpoint/resume_command.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>

#include "base/environment.h"

namespace fsdp {
namespace {

bool is_plain(unsigned char c) {
  return std::isalnum(c) != 0 || std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
}

std::string quoted_word(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + quoted_word(word);
  return command;
}

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

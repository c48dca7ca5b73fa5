// The bytes of an object that saves itself into an archive of LibTorch.
#pragma once

#include <torch/serialize.h>

#include <sstream>
#include <string>

namespace weft::test {

template <class T>
std::string saved(const T& object) {
  torch::serialize::OutputArchive archive;
  object.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}
template <class T>
void load(T& object, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  object.load(archive);
}

}  // namespace weft::test

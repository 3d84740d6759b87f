"""`Streams`: a topology as a running application on Spark."""

from thulawa.spark.application.streams import Streams as Streams
